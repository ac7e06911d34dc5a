cp "$T" ./innocent && cat ./innocent
