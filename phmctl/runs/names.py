"""The names of what lies in a run."""

RECIPE, RECIPE_JSON = "recipe.yaml", "recipe.json"
ENVIRONMENT = "environment.json"
DATA = "data.json"
EXPORT = "export.json"  # what tells an export's folder from a run's
CHECKPOINTS = "checkpoints"
ATTEMPT = "attempt.json"  # there while a training goes on; left by one that failed
LOCK = ".lock"
POINTERS = ("last", "best")
AUTO = "auto"  # the checkpoint that a run chooses itself
