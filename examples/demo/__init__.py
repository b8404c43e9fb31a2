"""The demo: a small shop on Penstock, live in the terminal; its server is killed, a mail fails, and Spark reads it all.

main       the command line, and the order of the chapters
shop       the shop: its server, and everything that flows
chapters   what happens to the shop, one function for each chapter
mailer     the shop's worker, run by `penstock worker`
screen     the live picture
"""
