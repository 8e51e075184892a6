"""What a link carries: sends to the next host while the one before sends to this one.

    link_rate.py ADDRESS NEXT_ADDRESS BYTES

Started on all hosts. Prints how many bytes of payload arrive in a second. The first half is not counted: TCP begins
slowly, and the slower the longer the queue before the link.
"""

import socket
import sys
import threading
import time

PORT, PIECE = 29400, 1 << 18


def connect(address):
    """A connection to a host that may still be starting; who started this program ends it if none comes."""
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.02)


def send(connection, size):
    for _ in range(0, size, PIECE):
        connection.sendall(bytes(PIECE))


def receive(connection, size):
    """Seconds until `size` bytes and a piece at most have arrived, and how many did."""
    arrived, began = 0, time.monotonic()
    while arrived < size:
        if not (piece := connection.recv(PIECE)):
            sys.exit(f"the connection has ended {size - arrived} bytes too early")
        arrived += len(piece)
    return time.monotonic() - began, arrived


def main():
    address, following, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with socket.create_server((address, PORT)) as server, connect(following) as outgoing:
        incoming, _ = server.accept()
        sender = threading.Thread(target=send, args=(outgoing, size))
        sender.start()
        _, before = receive(incoming, size // 2)
        seconds, arrived = receive(incoming, size - before)
        sender.join()
        print(arrived / seconds)


if __name__ == "__main__":
    main()
