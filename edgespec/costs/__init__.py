"""The costs of evaluations on this device: measured t(n), kept profiles, online corrections."""
