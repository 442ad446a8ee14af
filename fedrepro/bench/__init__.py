"""What is measured of speed, beside what the machine could do."""
