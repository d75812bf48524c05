"""The sub-commands: each reads a command line, calls the library and prints."""
