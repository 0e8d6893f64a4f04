# SPDX-License-Identifier: Apache-2.0
"""Sessions of Flask-Session: set at one replica, read at another one, cleared, and they expire."""

import sys

import redis
from flask import Flask, session
from flask_session import Session


def app_at(address):
    host, port = address.split(":")
    app = Flask(__name__)
    app.config.update(SESSION_TYPE="redis", SESSION_REDIS=redis.Redis(host, int(port)), PERMANENT_SESSION_LIFETIME=100)
    Session(app)

    @app.route("/set/<value>")
    def store(value):
        session["value"] = value
        return "ok"

    @app.route("/get")
    def load():
        return str(session.get("value"))

    @app.route("/clear")
    def clear():
        session.clear()
        return "ok"

    return app


def main():
    here, there = (app_at(address) for address in sys.argv[1:])
    client = here.test_client()
    assert client.get("/get").text == "None"
    assert client.get("/set/1").text == "ok"
    assert client.get("/get").text == "1"
    elsewhere = there.test_client()
    assert elsewhere.get("/get").text == "None"
    elsewhere.set_cookie("session", client.get_cookie("session").value)
    assert elsewhere.get("/get").text == "1"
    server = there.config["SESSION_REDIS"]
    keys = server.keys("session:*")
    assert keys and all(0 < server.ttl(key) <= 100 for key in keys), keys
    assert elsewhere.get("/clear").text == "ok"
    assert client.get("/get").text == "None"


main()
