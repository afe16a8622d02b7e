package edgespec.app;

/** A question, answer, note or error on the screen. Its {@link Conversation} synchronizes access. */
final class Entry {
    static final int QUESTION = 0, ANSWER = 1, NOTE = 2, ERROR = 3;

    final int kind;
    final StringBuilder text;
    /** Pairs of positions in the text: where accepted draft tokens begin and end. */
    int[] drafted = new int[0];

    Entry(int kind, String text) {
        this.kind = kind;
        this.text = new StringBuilder(text);
    }

    /** Appends text of an answer; a drafted piece right after another one extends its pair. */
    void append(String piece, boolean isDrafted) {
        int from = text.length();
        text.append(piece);
        if (!isDrafted) {
            return;
        }
        boolean continues = drafted.length > 0 && drafted[drafted.length - 1] == from;
        if (!continues) {
            int[] longer = new int[drafted.length + 2];
            System.arraycopy(drafted, 0, longer, 0, drafted.length);
            longer[drafted.length] = from;
            drafted = longer;
        }
        drafted[drafted.length - 1] = text.length();
    }

    Entry copy() {
        Entry copy = new Entry(kind, text.toString());
        copy.drafted = drafted.clone();
        return copy;
    }
}
