"""The catalogue: one TOML a model. Data only; `edgespec.catalogue` reads it."""
