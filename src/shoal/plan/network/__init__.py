"""Virtual time, and a network whose links are slow, cut or gone."""
