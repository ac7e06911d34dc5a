ln -s "$T" ./innocent; cat ./innocent
