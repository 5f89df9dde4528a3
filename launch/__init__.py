"""What starts and guards attempts: backends, the supervisor, launchers, NVML, checkpoints, causes."""
