"""What every process stands on: the command line, files, logs, health, shutdown."""
