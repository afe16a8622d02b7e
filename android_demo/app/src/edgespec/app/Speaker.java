package edgespec.app;

import android.view.View;
import java.util.List;

/**
 * Announces new text to screen readers, an answer in whole sentences. A live region on the growing text
 * would be read from its beginning at every token.
 */
final class Speaker {
    private final View view;
    /** Number of entries that were announced, apart from the end of the last answer. */
    private int seen;
    /** Index of the last answer, -1 if there is none. */
    private int answer = -1;
    /** Number of characters of the last answer that were announced. */
    private int said;

    /** @param all the entries that are on the screen already and are not announced */
    Speaker(View view, List<Entry> all) {
        this.view = view;
        forget(all);
    }

    private void forget(List<Entry> all) {
        seen = all.size();
        answer = -1;
        for (int i = 0; i < seen; i++) {
            if (all.get(i).kind == Entry.ANSWER) {
                answer = i;
                said = all.get(i).text.length();
            }
        }
    }

    /** Announces what is new since the last call. */
    void speak(List<Entry> all, boolean answering) {
        if (all.size() < seen) {
            forget(all); // a new conversation
        }
        for (; seen < all.size(); seen++) {
            Entry entry = all.get(seen);
            if (entry.kind == Entry.ANSWER) {
                answer = seen;
                said = 0;
            } else if (entry.kind != Entry.QUESTION) {
                view.announceForAccessibility(entry.text.toString());
            }
        }
        if (answer >= 0) {
            String text = all.get(answer).text.toString();
            sayTo(text, answering ? sentencesEnd(text) : text.length());
        }
    }

    private void sayTo(String text, int end) {
        if (end > said) {
            String more = text.substring(said, end).trim();
            said = end;
            if (!more.isEmpty()) {
                view.announceForAccessibility(more);
            }
        }
    }

    /** Returns where the last whole sentence ends, or `said` if no new one is complete. */
    private int sentencesEnd(String text) {
        for (int i = text.length() - 1; i > said; i--) {
            char c = text.charAt(i);
            if (c == '\n' || Character.isWhitespace(c) && ".!?".indexOf(text.charAt(i - 1)) >= 0) {
                return i + 1;
            }
        }
        return said;
    }
}
