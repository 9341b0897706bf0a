"""The web pages for operators: server-rendered HTML, usable without JavaScript, kept current with it.

Shows what the API shows and submits every form through the API's handlers, which it receives as an argument: no
rule about the fleet is decided here. Start reading at `routes`.
"""
