"""What binds data, model, loss and metric."""
