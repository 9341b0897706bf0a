"""A client outside a virtual network, with the packets of real clients (evidence §9)."""

import http.client
import os
import socket
import sys

xid, mac = os.urandom(4), bytes((2, 0, 0, 0, 0, 9))
packet = bytearray(244)
packet[0:4] = bytes((1, 1, 6, 0))
packet[4:8] = xid
if sys.argv[1] == "1":
    packet[0x0A] = 0x80
packet[0x1C:0x22] = mac
packet[0xEC:0xF4] = bytes((99, 130, 83, 99, 53, 1, 1, 255))

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(10)
    sock.bind(("0.0.0.0", 68))
    sock.sendto(packet, ("255.255.255.255", 67))
    answer = sock.recv(1024)

assert len(answer) >= 0xF6
assert (answer[0xEC:0xF0], answer[4:8], answer[0x1C:0x22]) == (bytes(packet[0xEC:0xF0]), xid, mac)
at, endpoint = 0xF0, b""
while answer[at] != 255:
    code, length = answer[at], answer[at + 1]
    if code == 245:
        endpoint = answer[at + 2 : at + 2 + length]
    at += 2 + length
address = socket.inet_ntoa(endpoint)
print(address)

connection = http.client.HTTPConnection(address, 80, timeout=10)
connection.request("GET", "/metadata/scheduledevents")
print(connection.getresponse().read().decode())
