"""A Hugging Face `config.json` read into a model: one module a kind of architecture."""
