"""Worker processes as the supervisor sees them: started, configured, replaced, ended."""
