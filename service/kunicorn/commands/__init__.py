"""The command line. `cli*` declare every command and option; the other modules are what commands do, each loaded when
its command runs, so that `--help` loads no Kafka client.
"""
