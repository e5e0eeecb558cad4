"""This worker's replica of the models: what every strategy compares, averages and votes on where workers meet."""
