module example.org/handler

go 1.19
