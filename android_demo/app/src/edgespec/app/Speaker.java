package edgespec.app;

import android.view.View;
import java.util.List;

/**
 * Says to a screen reader what is new: an answer by whole sentences, not by tokens, which a live region
 * over the streaming text would read from its beginning again and again.
 */
final class Speaker {
    private final View view;
    /** How many entries are dealt with; which of them is the last answer, and how much of it is said. */
    private int seen;
    private int answer = -1;
    private int said;

    /** @param all what is on the screen already and is not said again */
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

    /** Says what has come since the last call. */
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

    /** Where the last whole sentence ends, or what is said already. */
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
