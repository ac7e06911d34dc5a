awk 'BEGIN { system(ENVIRON["T"] " " ENVIRON["A"]) }'
