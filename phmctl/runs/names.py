"""The names of what lies in a run."""

RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
EXPORT = "export.json"  # what tells an export's folder from a run's
CHECKPOINTS = "checkpoints"
POINTERS = ("last", "best")
