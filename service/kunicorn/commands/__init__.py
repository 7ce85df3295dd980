"""The command line, and what each command does. `cli*` declare: `--help` loads no client."""
