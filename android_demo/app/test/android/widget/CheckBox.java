package android.widget;

import android.content.Context;
import java.util.Map;

public class CheckBox extends Button {
    private boolean checked;

    public CheckBox(Context context) { super(context); }
    public void setChecked(boolean checked) { this.checked = checked; }
    public boolean isChecked() { return checked; }
    @Override public void fakeClick() { checked = !checked; }
    @Override public boolean fakeIsTouchable() { return true; }
    @Override public void fakeSave(Map<Integer, Object> into) { into.put(fakeId, checked); }
    @Override public void fakeRestore(Map<Integer, Object> from) { checked = (Boolean) from.get(fakeId); }
}
