"""The program of the coordination service, which `service.start` starts."""

import sys

from jaxrl_dist.processes import service

service.serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
