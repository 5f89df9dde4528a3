"""What HPC users bring with them from Slurm: environment variables and file name patterns."""
