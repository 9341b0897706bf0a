"""What every room may use: clocks, durations, wording of sentences, HTTP, sockets. Imports only `forewarn.errors`."""
