mv "$T" ./innocent && cat ./innocent
