"""What runs where: the processes of `jaxinfer serve`, and who starts, watches and ends them."""
