ln "$T" ./innocent && cat ./innocent
