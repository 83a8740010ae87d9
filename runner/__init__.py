"""How the matrix is run and where it is reported: environments, processes, the command line."""
