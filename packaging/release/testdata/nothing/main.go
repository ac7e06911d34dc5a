// Command nothing is a small program to look at.
package main

func main() {}
