"""From packets to the bytes of TCP connections.

`packets` reads the headers of captured packets and gives segments: which host sent which bytes, and what it had
received. `reassembly` takes the segments of a pair of ports in order of arrival. It gives the byte streams of both
sides, and reports which of their bytes are missing. `framing` cuts runs of these bytes into the frames of a protocol.

A capture is incomplete evidence: an observer saw some of the packets. `reassembly` begins with the theory of what can
be concluded from it. docs/packets.md explains it for operators.

It may import captures and what is below it.
"""
