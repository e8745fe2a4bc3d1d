"""A trained model for programs: :func:`phmctl.inference.loading.load` and what it returns."""
