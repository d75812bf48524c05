"""The tasks of training, a module each."""
