"""The catalogue: one TOML a model. Data only; `edgespec.hub` reads it."""
