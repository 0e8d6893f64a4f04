# SPDX-License-Identifier: Apache-2.0
"""Flask-Limiter's windows: five requests are let in, whichever replica counts them."""

import sys

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address


def client_at(address, strategy):
    app = Flask(strategy)
    Limiter(
        get_remote_address,
        app=app,
        storage_uri=f"redis://{address}",
        strategy=strategy,
        default_limits=["5 per year"],
        key_prefix=strategy,
    )
    app.route("/")(lambda: "ok")
    return app.test_client()


for strategy in ["fixed-window", "moving-window", "sliding-window-counter"]:
    clients = [client_at(address, strategy) for address in sys.argv[1:]]
    codes = [clients[n % 2].get("/").status_code for n in range(8)]
    assert codes == [200] * 5 + [429] * 3, (strategy, codes)
