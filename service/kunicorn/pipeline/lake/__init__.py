"""What exports leave: columns, files and tables of a lake, and how its small files become fewer."""
