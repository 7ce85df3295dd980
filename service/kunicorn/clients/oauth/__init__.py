"""The token helper: a process of its own that fetches one OAUTHBEARER token and exits."""
