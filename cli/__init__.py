"""The command line: click commands, tables, JSON and exit codes; the only folder that prints."""
