"""Answer texts with trained models: search, engines, translators, classifiers, and what opens them."""
