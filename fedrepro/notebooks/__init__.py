"""What notebooks work with, notebooks as batch jobs, and the skeleton of a new one."""
