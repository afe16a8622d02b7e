"""What evaluations cost on this device: measured t(n), kept profiles, online corrections."""
