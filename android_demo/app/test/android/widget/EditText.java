package android.widget;

import android.content.Context;
import android.text.Editable;
import java.util.Map;

public class EditText extends TextView {
    public String fakeHint = "";
    public boolean fakeIsPassword;

    public EditText(Context context) { super(context); }

    public Editable getText() {
        String text = fakeText.toString();
        return new Editable() {
            @Override
            public String toString() {
                return text;
            }
        };
    }

    public final void setHint(int id) { fakeHint = getContext().getString(id); }
    public void setMaxLines(int lines) {}
    public void setInputType(int type) { fakeIsPassword = (type & 0x80) != 0; }
    @Override public void fakeSave(Map<Integer, Object> into) { into.put(fakeId, fakeText); }
    @Override public void fakeRestore(Map<Integer, Object> from) { fakeText = from.get(fakeId); }
}
