nice -n 1 nohup timeout 5 setsid -w stdbuf -oL "$T" $A
