"""`helm test`: a pod with the trainer's policies reaches nothing. Policies may take a moment to arrive."""

import os
import socket
import sys
import time

# The one address that listens in every cluster.
address = (os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"]))
end = time.monotonic() + float(sys.argv[1])
while True:
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError as error:
        print(f"No way out: {error}.")
        sys.exit(0)
    if time.monotonic() >= end:
        break
    time.sleep(2)
sys.exit(
    "A pod under the trainer's NetworkPolicy reached the API server: this cluster does not enforce policies. "
    "Do not train here; use a network plug-in that does (docs/deploy-kubernetes.md)."
)
