"""The costs of evaluations on this device: measured t(n), saved profiles, online corrections."""
