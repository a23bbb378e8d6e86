"""isograd: run model-written code in a sandbox and grade it by what it does."""
