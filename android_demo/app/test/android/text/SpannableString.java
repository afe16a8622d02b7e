package android.text;

import android.text.style.ForegroundColorSpan;
import java.util.ArrayList;
import java.util.List;

public class SpannableString {
    private final String text;
    private final List<int[]> spans = new ArrayList<>();

    public SpannableString(CharSequence text) { this.text = text.toString(); }

    public void setSpan(Object what, int start, int end, int flags) {
        spans.add(new int[] {start, end, ((ForegroundColorSpan) what).fakeColor});
    }

    /** Returns the text of this colour. */
    public String fakeColoured(int color) {
        StringBuilder found = new StringBuilder();
        for (int[] span : spans) {
            found.append(span[2] == color ? text.substring(span[0], span[1]) : "");
        }
        return found.toString();
    }

    @Override public String toString() { return text; }
}
