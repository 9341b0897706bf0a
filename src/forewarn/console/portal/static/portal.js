// What every page has: the clock that goes on.
