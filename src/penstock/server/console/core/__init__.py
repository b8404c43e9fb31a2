"""What the console computes, pure: rates, rows, sentences, groups, and the life of a message."""
